"""The UPGD family: gradient descent that protects useful weights and perturbs the others."""
