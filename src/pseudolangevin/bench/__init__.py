"""How fast it is: time, arithmetic and memory per step, beside other libraries, in one run on one machine."""
