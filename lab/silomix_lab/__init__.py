"""What one person does alone: plans, simulations, audits, experiments, notebooks, the demo."""
