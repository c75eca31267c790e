# SPDX-License-Identifier: Apache-2.0
"""I/O behind small modules: each foreign API has one home here, and none of them decides."""
