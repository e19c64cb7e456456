# A module for NixOS, from a checkout:
#
#   imports = [ /path/to/rustguard/packaging/nixos.nix ];
#   services.rustguard = { enable = true; tunnels = [ "wg0" ]; networks = [ "rg0" ]; };
{ config, lib, pkgs, ... }:

let
  cfg = config.services.rustguard;
  source = lib.cleanSource ../.;

  rustguard = pkgs.rustPlatform.buildRustPackage {
    pname = "rustguard";
    version = (lib.importTOML (source + "/Cargo.toml")).workspace.package.version;
    src = source;
    cargoLock.lockFile = source + "/Cargo.lock";
    cargoBuildFlags = [ "-p" "rustguard-cli" ];
    nativeBuildInputs = [ pkgs.cmake ];
    dontUseCmakeConfigure = true;
    # They take root and network namespaces.
    doCheck = false;
    # The program installs itself: the units then start it from here. With a root, it leaves services alone.
    installPhase = ''
      runHook preInstall
      find target -path '*/release/rustguard' -type f -exec {} install --root / --prefix "$out" \;
      runHook postInstall
    '';
    meta = {
      description = "WireGuard tunnels, networks and meshes in userspace";
      license = with lib.licenses; [ mit asl20 ];
      mainProgram = "rustguard";
      platforms = lib.platforms.linux;
    };
  };

  # An instance of a unit of the package, started at boot.
  wanted = template: name: lib.nameValuePair "${template}@${name}" {
    overrideStrategy = "asDropin";
    wantedBy = [ "multi-user.target" ];
    # nft, for default routes and NAT.
    path = [ pkgs.nftables ];
  };
in
{
  options.services.rustguard = {
    enable = lib.mkEnableOption "RustGuard";
    package = lib.mkOption {
      type = lib.types.package;
      default = rustguard;
      defaultText = lib.literalMD "the checkout that this module is in";
      description = "The package to use.";
    };
    tunnels = lib.mkOption {
      type = lib.types.listOf lib.types.str;
      default = [ ];
      example = [ "wg0" ];
      description = "Tunnels of files in /etc/wireguard or /etc/rustguard, to be up from the boot on.";
    };
    networks = lib.mkOption {
      type = lib.types.listOf lib.types.str;
      default = [ ];
      example = [ "rg0" ];
      description = "Interfaces of networks that others can join, to be served from the boot on.";
    };
  };

  config = lib.mkIf cfg.enable {
    environment.systemPackages = [ cfg.package ];
    systemd.packages = [ cfg.package ];
    services.udev.packages = [ cfg.package ];
    environment.etc."systemd/network/10-rustguard.network".source =
      "${cfg.package}/lib/systemd/network/10-rustguard.network";
    systemd.services = lib.listToAttrs (
      map (wanted "rustguard") cfg.tunnels ++ map (wanted "rustguard-serve") cfg.networks
    );
  };
}
