# SPDX-License-Identifier: Apache-2.0
"""sparkctl, the operator's command."""
