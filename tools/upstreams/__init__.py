"""One upstream a file: which series it has and which patches make each of them."""
