"""Whole clusters in one thread, on a virtual clock and a seeded network, under faults that a seed
draws.

The nodes, links, stores, names and supervisors are the real ones; clock, network, randomness,
processes and disks are simulated. One seed is one run, the same each time, whose trace has one
hash.

`simulate` tests actors of your own; `simulate_once` runs the built-in workload, which attacks the
runtime's promises; `first_contacts` lets many nodes call each other for the first time at once.
"""

from runtime.simulation.faults import KINDS
from runtime.simulation.first_contacts import first_contacts
from runtime.simulation.linearizability import (
    Model,
    RegisterModel,
    UndecidedError,
    Violation,
    check,
)
from runtime.simulation.report import CallHistory, CheckResult, Operation, Report, TraceEvent
from runtime.simulation.runs import (
    Scenario,
    Simulation,
    SimulationError,
    run_scenario,
    simulate,
    simulate_once,
)

__all__ = [
    "KINDS",
    "CallHistory",
    "CheckResult",
    "Model",
    "Operation",
    "RegisterModel",
    "Report",
    "Scenario",
    "Simulation",
    "SimulationError",
    "TraceEvent",
    "UndecidedError",
    "Violation",
    "check",
    "first_contacts",
    "run_scenario",
    "simulate",
    "simulate_once",
]
