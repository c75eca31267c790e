# SPDX-License-Identifier: Apache-2.0
"""The resident supervisor: one GLib loop, one writer."""
