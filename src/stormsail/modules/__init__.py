"""Networks: with which weights. Empty until the learner arrives."""
