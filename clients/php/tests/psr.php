<?php

// What the client needs of psr/log, which is not a dependency.

namespace Psr\Log {
    if (!interface_exists(LoggerInterface::class)) {
        interface LoggerInterface
        {
            public function warning(string|\Stringable $message, array $context = []): void;

            public function debug(string|\Stringable $message, array $context = []): void;
        }
    }
}

namespace {
    final class Log implements Psr\Log\LoggerInterface
    {
        /** @var list<string> */
        public array $lines = [];

        public function warning(string|Stringable $message, array $context = []): void
        {
            $this->lines[] = strtr($message, array_combine(array_map(fn ($name) => "{{$name}}", array_keys($context)), $context));
        }

        public function debug(string|Stringable $message, array $context = []): void
        {
            $this->warning($message, $context);
        }
    }
}
