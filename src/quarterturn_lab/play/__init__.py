"""The playground: trained networks on a picture that the user turns, on a page of this machine."""
