"""A module that ends its process when it is imported."""

import sys

sys.exit("this module does not want to be imported")
