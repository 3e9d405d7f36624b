"""`silomix audit`: an attack on a real silo process that knows everything but one record."""
