"""Imports that every child of a soak needs; none starts work before the fork."""

import impctl.api.session
import impctl.cli.application
import impctl.cli.output.outcome
import impctl.service.capture
import impctl.service.gc
import impctl.service.maintain
import impctl.service.rebalance
import impctl.service.rewrite
import impctl.service.status
import impctl.store.store  # noqa: F401
