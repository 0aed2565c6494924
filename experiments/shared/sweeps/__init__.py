"""What a sweep is made of: a grid of flags, runs in processes of their own, and what is drawn of them."""
