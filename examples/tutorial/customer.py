"""Chapter 6: buy a seat, from any program: customer.py SEAT BUYER."""

import sys

from box_office import SeatTakenError
from kept_office import KeptOffice
from runtime.blocking import connect

with connect("127.0.0.1:7400") as cluster:
    office = cluster.lookup("box-office", KeptOffice)
    try:
        print(office.buy(int(sys.argv[1]), sys.argv[2]))
    except SeatTakenError as error:
        sys.exit(f"sorry: {error}")
    print(office.free(), "seats are free; the office is on", office.where())
