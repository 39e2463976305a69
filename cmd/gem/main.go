// Command gem is GEM with the domains that come with it. `gem --help` lists its commands.
package main

import (
	"github.com/gemworker/gem"
	"github.com/gemworker/gem/handlers/builtin"
)

func main() {
	gem.Main(gem.Program{Domains: builtin.Domains(), Registry: gem.BuiltInRegistry})
}
