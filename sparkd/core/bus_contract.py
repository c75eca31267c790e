# SPDX-License-Identifier: Apache-2.0
"""The D-Bus interface between the daemon and its callers. Replies are JSON text.

No method takes a path or a command: an engine's name is all that a caller can say.
"""

NAME = "io.github.sparkd.Manager1"
PATH = "/io/github/sparkd/Manager1"
INTERFACE = "io.github.sparkd.Manager1"

MANAGE_ENGINES = "io.github.sparkd.manage-engines"
APPLY_CONFIG = "io.github.sparkd.apply-config"
"""polkit actions; root needs none."""

ERROR_PREFIX = "io.github.sparkd.Error."
ERRORS = frozenset(
    {"NoSuchEngine", "NoSuchIncident", "NotPermitted", "Busy", "Config", "Failed", "Held"}
)
"""The last part of every error name that the daemon answers with."""

INTROSPECTION = f"""
<node>
  <interface name="{INTERFACE}">
    <method name="Status"><arg name="json" type="s" direction="out"/></method>
    <method name="Incidents">
      <arg name="limit" type="u" direction="in"/>
      <arg name="engine" type="s" direction="in"/>
      <arg name="json" type="s" direction="out"/>
    </method>
    <method name="Incident">
      <arg name="id" type="s" direction="in"/>
      <arg name="json" type="s" direction="out"/>
    </method>
    <method name="Alerts">
      <arg name="limit" type="u" direction="in"/>
      <arg name="json" type="s" direction="out"/>
    </method>
    <method name="TestAlert"><arg name="json" type="s" direction="out"/></method>
    <method name="Start">
      <arg name="engine" type="s" direction="in"/>
      <arg name="wait" type="b" direction="in"/>
      <arg name="json" type="s" direction="out"/>
    </method>
    <method name="Stop">
      <arg name="engine" type="s" direction="in"/>
      <arg name="wait" type="b" direction="in"/>
      <arg name="json" type="s" direction="out"/>
    </method>
    <method name="Restart">
      <arg name="engine" type="s" direction="in"/>
      <arg name="wait" type="b" direction="in"/>
      <arg name="json" type="s" direction="out"/>
    </method>
    <method name="Apply">
      <arg name="dry_run" type="b" direction="in"/>
      <arg name="force" type="b" direction="in"/>
      <arg name="prune" type="b" direction="in"/>
      <arg name="why" type="s" direction="in"/>
      <arg name="json" type="s" direction="out"/>
    </method>
    <property name="Version" type="s" access="read"/>
  </interface>
</node>
"""
