# SPDX-License-Identifier: Apache-2.0
"""Lint: what a configuration permits but an operator will regret, as rules with stable codes.

`engine.lint` is the entry; `registry.RULES` lists the rules, one module for each family.
"""
