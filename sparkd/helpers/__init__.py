# SPDX-License-Identifier: Apache-2.0
"""The programs that run inside an engine's unit, with cheap imports and no need of the daemon."""
