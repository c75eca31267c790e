# SPDX-License-Identifier: Apache-2.0
"""The signature catalogue, as data."""
