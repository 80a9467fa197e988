"""Code written for other libraries, run as it is."""
