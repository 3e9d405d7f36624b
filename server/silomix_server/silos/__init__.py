"""The coordinator towards the silos: leases, channel, gate, attempts' outcomes, complaints."""
