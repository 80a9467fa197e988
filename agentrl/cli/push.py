"""`agentrl push`: upload a trained model and its model card to the Hugging Face hub."""

from __future__ import annotations

import argparse


def push_run(options: argparse.Namespace) -> None:
    """Upload the checkpoint of `options.run` to `options.name`, or show what would be uploaded.

    Raises:
        AgentRLError: the run or the checkpoint does not exist, or the hub refuses the upload.
    """
    from agentrl.saved.push import prepare_upload, push  # slow import
    from agentrl.saved.run import load

    upload = prepare_upload(load(options.run), options.name, options.step)
    print(f"{upload.name}: {len(upload.files) + 1} files, {upload.num_bytes / 1e6:,.1f} MB")
    if options.dry_run:
        for file in upload.files:
            print(f"  {file}")
        print(f"  README.md:\n\n{upload.card}")
        return
    print(f"uploaded: {push(upload, private=options.private)}")
