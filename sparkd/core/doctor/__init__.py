# SPDX-License-Identifier: Apache-2.0
"""What `sparkctl doctor` finds: facts of the host and its engines in, findings with codes out."""
