from IPython.core.interactiveshell import InteractiveShell

import fastloop

shell = InteractiveShell.instance()
for magic in ("load_ext", "unload_ext"):
    shell.run_line_magic(magic, "fastloop")
    print([seam.is_on for seam in fastloop.patch_status().seams.values()])
