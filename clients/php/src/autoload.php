<?php

// For programs without Composer.

declare(strict_types=1);

spl_autoload_register(static function (string $class): void {
    if (str_starts_with($class, 'Hapax\\')) {
        @include_once __DIR__ . '/' . strtr(substr($class, 6), '\\', '/') . '.php';
    }
});
