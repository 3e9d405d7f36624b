"""What every party does alike on its machine: logs, durable files, ownership, its terminal."""
