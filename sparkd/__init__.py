# SPDX-License-Identifier: Apache-2.0
"""sparkd keeps vLLM engines alive on one NVIDIA DGX Spark."""

__version__ = "0.1.0"
