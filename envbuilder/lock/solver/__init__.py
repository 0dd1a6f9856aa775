"""A conda solver and installer over py-rattler that speaks the protocol conda-lock expects of ``conda``.

It is an executable of its own (``envbuilder-solver``): py-rattler may crash while an interpreter shuts down, so it
never runs inside the command line, and its process ends without tearing the interpreter down. Stock conda-lock takes
it as ``conda-lock --conda envbuilder-solver``.
"""
