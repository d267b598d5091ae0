"""Recordings on disk (MCAP files, ROS bags): finding them, and reading what they define. No
Spark here: the sources `mcap` and `rosbag` and the sink `mcap` use it.
"""
