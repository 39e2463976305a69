// Command gem is GEM with its built-in domains. `gem --help` lists its commands.
package main

import (
	"github.com/gemworker/gem"
	"github.com/gemworker/gem/handlers/builtin"
)

func main() { gem.Main(gem.Program{Domains: builtin.Domains(), Registry: gem.BuiltInRegistry}) }
