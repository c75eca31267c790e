# SPDX-License-Identifier: Apache-2.0
"""Throw-away machines for tests, the demo and the benchmarks.

`rootfs` builds the file systems, `container` boots one under a real systemd, `real_vllm` adds a
real vLLM that needs no GPU. Everything cached lives in one folder, see `cache.cache_dir`.
"""
