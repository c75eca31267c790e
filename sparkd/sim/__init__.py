# SPDX-License-Identifier: Apache-2.0
"""A simulated vLLM engine with a configurable life, for beds, the demo and drills."""
