<?php

declare(strict_types=1);

namespace Hapax\Internal;

/** @internal Tells whether this is still the process in which something began. */
final class Process
{
    /** What no other process has: its ID, which a later one may repeat, and the time of its start. */
    public static function here(): string
    {
        // Not /proc/self/stat: PHP remembers where the link leads, which after a fork is to the parent.
        $id = (string) @readlink('/proc/self');
        $stat = $id === '' ? '' : (string) @file_get_contents("/proc/$id/stat", false, null, 0, 1024);
        // The name, which is in parentheses, may hold anything.
        $start = explode(' ', substr($stat, (int) strrpos($stat, ')')), 22)[20] ?? '';
        return getmypid() . " $id $start";
    }

    /** Seconds of a clock that only goes forward. */
    public static function now(): float
    {
        return hrtime(true) / 1e9;
    }
}
