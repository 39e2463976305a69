// Command gem is GEM with its built-in domains. `gem --help` lists its commands.
package main

import "github.com/gemworker/gem"

func main() {
	gem.Main(gem.Program{Registry: gem.BuiltInRegistry})
}
