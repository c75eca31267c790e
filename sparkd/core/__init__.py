# SPDX-License-Identifier: Apache-2.0
"""The functional core: values in, decisions out; no clock, no file, no process, no socket."""
