"""A backend holds a model, scores samples and trains. The policy, a reference policy and a critic each have one."""
