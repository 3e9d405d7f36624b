"""The coordinator towards the silos: leases, the round channel, gate, settlements, complaints."""
