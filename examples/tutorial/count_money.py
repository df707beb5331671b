"""Chapter 9: have the money counted on the node stage-1."""

from cashier import Cashier
from runtime.blocking import connect

with connect("127.0.0.1:7400") as cluster:
    cluster.options(name="cashier", on="stage-1").spawn(Cashier).count()
