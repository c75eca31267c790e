# SPDX-License-Identifier: Apache-2.0
"""From what somebody already runs to a proposed configuration. Pure: texts in, a plan out.

One module per shape of source (`unit`, `compose`, `quadlet`, `docker`, `command`) turns it into
`Launch` values; `command` follows scripts with `shell`, which the modules `shell_*` serve.
`launch_arguments` reads the flags of a `Launch`, and `proposal` turns both into the text of one
file of engines.d, of which `address` and `variables` write their parts.
"""
