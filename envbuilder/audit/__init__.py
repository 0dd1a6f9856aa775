"""Which GPUs can these binaries run on?"""
