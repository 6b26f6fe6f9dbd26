"""Front door in Python: the functions behind `import stormsail as ss`, thin over the layers below.

Each takes what a person has at hand, a path, an environment or settings by name, and returns an
object that shows itself. What is computed is computed below: `algorithms` trains, `evaluation`
judges, and `modules.Agent.decide` decides.
"""
