"""Models besides the policy: critic, reference, reward model; and the KL controller."""
