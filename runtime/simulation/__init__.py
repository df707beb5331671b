"""Whole clusters in one thread, on a virtual clock and a seeded network, under faults that a seed draws.

The nodes, links, stores, names and supervisors are the real ones; clock, network, randomness, processes and disks are simulated. One seed
is one run, the same each time, whose trace has one hash.

`simulate` tests actors of your own; `simulate_once` runs the built-in workload, which attacks the runtime's promises; `first_contacts` lets
many nodes call each other for the first time at once.
"""

from runtime.simulation.faults import KINDS
from runtime.simulation.first_contacts import first_contacts
from runtime.simulation.history import History, Operation
from runtime.simulation.linearizability import Model, RegisterModel, UndecidedError, Violation, check
from runtime.simulation.report import Happening, Report, Verdict
from runtime.simulation.running import simulate_once
from runtime.simulation.scenarios import Scenario, Simulation, SimulationError, run_scenario, simulate

__all__ = [
    "KINDS",
    "Happening",
    "History",
    "Model",
    "Operation",
    "RegisterModel",
    "Report",
    "Scenario",
    "Simulation",
    "SimulationError",
    "UndecidedError",
    "Verdict",
    "Violation",
    "check",
    "first_contacts",
    "run_scenario",
    "simulate",
    "simulate_once",
]
