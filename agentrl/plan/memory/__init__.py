"""Bytes of a device by part: training in its layout, and the engines that sample."""
