"""From traced parts to programs of the C++ library."""
