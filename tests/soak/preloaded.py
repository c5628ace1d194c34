"""What every child of a soak needs, imported once; nothing of it runs before the fork."""

import impctl.api.open_workload
import impctl.app.capture
import impctl.app.gc
import impctl.app.maintain
import impctl.app.rebalance
import impctl.app.rewrite
import impctl.app.status
import impctl.cli.application
import impctl.cli.output.json
import impctl.store.store  # noqa: F401
