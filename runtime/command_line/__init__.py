"""The command `understudy`: one file a command. User mistakes give one line with the cause and the
next step, never a traceback.
"""
