"""`silomix plan`: what a study would cost and give, in words and a picture."""
