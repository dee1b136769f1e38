"""What fault tolerance costs while nothing fails: steps of relume beside those of its peers, in one run."""
