# SPDX-License-Identifier: Apache-2.0
"""From what somebody already runs to a proposed configuration. Pure: texts in, a plan out.

One module per shape of source (`unit`, `compose`, `quadlet`, `docker`, `script`) turns it into
`Launch` values; `proposal` turns a `Launch` into the text of one file of engines.d.
"""
